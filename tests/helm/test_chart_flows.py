"""The network policies allow the flows that the mesh needs, and none besides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from support.charts import NAMESPACE, VALUE_SETS, Helm, Manifest, named, of_kind, service_pods, settings_of

NAME = "kubernetes.io/metadata.name"
COMPONENT = "app.kubernetes.io/component"
ANYWHERE = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True)
class Peer:
    """Somebody in the cluster."""

    name: str
    labels: tuple[tuple[str, str], ...]
    namespace: str = NAMESPACE


CALLER = Peer("caller", (("fanfold/caller", "true"),))
STRANGER = Peer("stranger", ())
NEIGHBOUR = Peer("neighbour", (("fanfold/caller", "true"),), "elsewhere")
TEST = Peer(
    "test",
    tuple({"app.kubernetes.io/name": "fanfold", "app.kubernetes.io/instance": "fanfold", COMPONENT: "test"}.items()),
)
SCRAPER = Peer("scraper", (("app", "prometheus"),), "monitoring")
DNS = Peer("dns", (("k8s-app", "kube-dns"),), "kube-system")


def members_of(manifests: list[Manifest]) -> list[Peer]:
    owners = of_kind(manifests, "Deployment", "StatefulSet")
    return [
        Peer(owner["metadata"]["name"], tuple(owner["spec"]["template"]["metadata"]["labels"].items()))
        for owner in owners
    ]


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def is_meant(peer: Manifest, who: Peer) -> bool:
    """Whether a `from` or `to` means somebody in the cluster; whose addresses are in no block that is told here."""
    if "ipBlock" in peer:
        return False
    there = who.namespace == NAMESPACE
    if "namespaceSelector" in peer:
        there = selects(peer["namespaceSelector"], {NAME: who.namespace})
    return there and selects(peer.get("podSelector", {}), dict(who.labels))


def allows(policies: list[Manifest], who: Peer, other: Peer, port: int, direction: str) -> bool:
    """Whether `who` may have a flow in that direction with `other`; all, where no policy selects it."""
    key = {"ingress": "from", "egress": "to"}[direction]
    about = [
        policy["spec"]
        for policy in policies
        if who.namespace == NAMESPACE and selects(policy["spec"]["podSelector"], dict(who.labels))
    ]
    return not about or any(
        any(is_meant(peer, other) for peer in rule[key]) and port in [each["port"] for each in rule["ports"]]
        for spec in about
        for rule in spec[direction]
    )


def flows(manifests: list[Manifest]) -> set[tuple[str, str, str]]:
    """Who may connect to whom, at the port of which name."""
    policies, members = of_kind(manifests, "NetworkPolicy"), members_of(manifests)
    ports = {
        (name, port["name"]): port["containerPort"]
        for name, spec in service_pods(manifests)
        for port in spec["containers"][0]["ports"]
    }
    return {
        (one.name, other.name, label)
        for one in (*members, CALLER, STRANGER, NEIGHBOUR, SCRAPER, TEST)
        for other in members
        for (name, label), port in ports.items()
        if name == other.name
        and allows(policies, one, other, port, "egress")
        and allows(policies, other, one, port, "ingress")
    }


def expected(nodes: set[str], mesh: str, callers: str) -> set[tuple[str, str, str]]:
    coordinator, registry = "fanfold-coordinator", "fanfold-job-registry"
    members = {coordinator, registry, *nodes}
    return (
        {(coordinator, member, mesh) for member in members}
        | {("caller", coordinator, callers), ("caller", registry, callers), ("test", coordinator, callers)}
        | {("scraper", member, "metrics") for member in members}
    )


@pytest.mark.contract("C40")
def test_in_the_clear_services_and_callers_use_the_same_port(helm: Helm) -> None:
    nodes = {"fanfold-node-docs", "fanfold-node-coding"}
    assert flows(helm.render("pools")) == expected(nodes, "grpc", "grpc")


@pytest.mark.contract("C40")
def test_with_certificates_nodes_are_called_where_those_are_asked_for(helm: Helm) -> None:
    found = flows(helm.template("--set", "tls.mode=certManager,tls.certManager.issuer.name=ca"))
    assert found == expected({"fanfold-node-default"}, "grpcs-mutual", "grpcs")


def test_nodes_that_take_callers_are_open_to_them(helm: Helm) -> None:
    direct = "executorNodes.pools.default.config.direct_callers=true"
    assert ("caller", "fanfold-node-default", "grpc") in flows(helm.template("--set", direct))


@pytest.mark.parametrize("values", VALUE_SETS)
def test_everybody_finds_names_and_every_flow_has_ends_and_ports(helm: Helm, values: str) -> None:
    manifests = helm.render(values)
    policies = of_kind(manifests, "NetworkPolicy")
    assert len(policies) == len(members_of(manifests))
    for member in members_of(manifests):
        assert allows(policies, member, DNS, 53, "egress")
        assert not allows(policies, member, STRANGER, 443, "egress")
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        for rule in (*policy["spec"]["ingress"], *policy["spec"]["egress"]):
            assert rule["ports"]  # none means all
            assert rule.get("from") or rule.get("to")


def test_addresses_beyond_the_cluster_are_those_that_are_needed(helm: Helm) -> None:
    cluster = {(block, port) for block in ANYWHERE for port in (443, 6443)}
    assert beyond(helm.render("minimal"), "fanfold-coordinator") == cluster
    with_database = beyond(helm.render("postgres-ha"), "fanfold-coordinator")
    assert ("10.20.0.0/16", 5432) in with_database
    assert beyond(helm.render("postgres-ha"), "fanfold-node-default") == cluster
    # Nodes know coordinators by certificates, and have no keys of tokens to ask for.
    assert beyond(helm.render("mtls"), "fanfold-node-default") == set()
    assert beyond(helm.render("mtls"), "fanfold-job-registry") == cluster


def test_nodes_that_are_not_the_charts_are_reached_by_coordinators_alone(helm: Helm) -> None:
    manifests = helm.render("everything")
    assert settings_of(manifests, "agents-coordinator")["nodes"]["static"] == ["outside.example.com:7410"]
    assert ("10.40.0.0/24", 7410) in beyond(manifests, "agents-coordinator")
    assert not any(block == "10.40.0.0/24" for block, _ in beyond(manifests, "agents-job-registry"))
    assert not any(port == 7410 for _, port in beyond(helm.render("postgres-ha"), "fanfold-coordinator"))


def test_the_test_of_the_release_is_let_in_whoever_else_is(helm: Helm) -> None:
    manifests = helm.render("mtls")  # where callers are known by address
    found = flows(manifests)
    assert ("test", "fanfold-coordinator", "grpcs") in found
    assert not any(who == "caller" for who, _, _ in found)
    labels = named(manifests, "Pod", "fanfold-test")["metadata"]["labels"]
    assert labels.items() >= dict(TEST.labels).items()


def test_callers_from_beyond_the_cluster_come_to_one_port(helm: Helm) -> None:
    manifests = helm.render("mtls")
    outer = named(manifests, "Service", "fanfold-coordinator-external")
    assert outer["metadata"]["annotations"] == {"example.com/internal": "true"}
    assert outer["spec"]["type"] == "LoadBalancer"
    assert [port["port"] for port in outer["spec"]["ports"]] == [7400]
    assert outer["spec"]["externalTrafficPolicy"] == "Local"  # or policies would see the machines' own addresses
    inner = named(manifests, "Service", "fanfold-coordinator")
    assert inner["spec"].get("type", "ClusterIP") == "ClusterIP"
    assert [port["port"] for port in inner["spec"]["ports"]] == [7400, 7440, 7480]
    certificate = named(manifests, "Certificate", "fanfold-coordinator")["spec"]
    assert "mesh.example.org" in certificate["dnsNames"]


def test_names_may_be_told_elsewhere(helm: Helm) -> None:
    elsewhere = '{"to": [{"namespaces": {"name": "openshift-dns"}}], "ports": [5353]}'
    manifests = helm.template("--set-json", f"networkPolicy.dns={elsewhere}")
    rule = named(manifests, "NetworkPolicy", "fanfold-coordinator")["spec"]["egress"][0]
    assert rule["ports"] == [{"port": 5353, "protocol": "UDP"}, {"port": 5353, "protocol": "TCP"}]
    assert rule["to"] == [
        {"podSelector": {"matchLabels": {}}, "namespaceSelector": {"matchLabels": {"name": "openshift-dns"}}}
    ]


def test_who_sends_traces_may_and_nobody_else(helm: Helm) -> None:
    collector = ("10.30.0.7/32", 4318)
    manifests = helm.render("everything")
    assert collector in beyond(manifests, "agents-coordinator")
    assert collector not in beyond(manifests, "agents-job-registry") | beyond(manifests, "agents-node-coding")


def test_no_destination_is_none_and_not_all(helm: Helm) -> None:
    manifests = helm.template("--set-json", "networkPolicy.apiServer.to=[],networkPolicy.callers=[]")
    assert beyond(manifests, "fanfold-coordinator") == set()
    assert not any(who == "caller" for who, _, _ in flows(manifests))


def beyond(manifests: list[Manifest], name: str) -> set[tuple[Any, int]]:
    """The blocks of addresses that a member may connect to, and their ports; but for a machine's own cache of names."""
    (policy,) = (each for each in of_kind(manifests, "NetworkPolicy") if each["metadata"]["name"] == name)
    return {
        (peer["ipBlock"]["cidr"], port["port"])
        for rule in policy["spec"]["egress"]
        for peer in rule["to"]
        if "ipBlock" in peer and peer["ipBlock"]["cidr"] != "169.254.20.10/32"
        for port in rule["ports"]
    }
