"""The network policies allow the flows that the mesh needs, and none besides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from support.charts import NAMESPACE, VALUE_SETS, Helm, Manifest, of_kind, service_pods

NAME = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Peer:
    """Somebody in the cluster."""

    name: str
    labels: tuple[tuple[str, str], ...]
    namespace: str = NAMESPACE


CALLER = Peer("caller", (("fanfold/caller", "true"),))
STRANGER = Peer("stranger", ())
NEIGHBOUR = Peer("neighbour", (("fanfold/caller", "true"),), "elsewhere")
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
        for one in (*members, CALLER, STRANGER, NEIGHBOUR, SCRAPER)
        for other in members
        for (name, label), port in ports.items()
        if name == other.name
        and allows(policies, one, other, port, "egress")
        and allows(policies, other, one, port, "ingress")
    }


def expected(nodes: set[str], mesh: str, callers: set[str]) -> set[tuple[str, str, str]]:
    coordinator, registry = "fanfold-coordinator", "fanfold-job-registry"
    members = {coordinator, registry, *nodes}
    return (
        {(coordinator, member, mesh) for member in members}
        | {("caller", member, port) for member in (coordinator, registry) for port in callers}
        | {("scraper", member, "metrics") for member in members}
    )


@pytest.mark.contract("C40")
def test_in_the_clear_services_and_callers_use_the_same_port(helm: Helm) -> None:
    nodes = {"fanfold-node-docs", "fanfold-node-coding"}
    assert flows(helm.render("pools")) == expected(nodes, "grpc", {"grpc"})


@pytest.mark.contract("C40")
def test_with_certificates_nodes_are_called_where_those_are_asked_for(helm: Helm) -> None:
    found = flows(helm.template("--set", "tls.mode=certManager,tls.certManager.issuer.name=ca"))
    assert found == expected({"fanfold-node-default"}, "grpcs-mutual", {"grpcs", "grpcs-mutual"})


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
    assert beyond(helm.render("minimal"), "fanfold-coordinator") == {("0.0.0.0/0", 443), ("0.0.0.0/0", 6443)}
    with_database = beyond(helm.render("postgres-ha"), "fanfold-coordinator")
    assert ("10.20.0.0/16", 5432) in with_database
    assert beyond(helm.render("postgres-ha"), "fanfold-node-default") == beyond(
        helm.render("minimal"), "fanfold-coordinator"
    )
    # Nodes know coordinators by certificates, and have no keys of tokens to ask for.
    assert beyond(helm.render("mtls"), "fanfold-node-default") == set()
    assert beyond(helm.render("mtls"), "fanfold-job-registry") == {("0.0.0.0/0", 443), ("0.0.0.0/0", 6443)}


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
    """The blocks of addresses that a member may connect to, and the ports there."""
    (policy,) = (each for each in of_kind(manifests, "NetworkPolicy") if each["metadata"]["name"] == name)
    return {
        (peer["ipBlock"]["cidr"], port["port"])
        for rule in policy["spec"]["egress"]
        for peer in rule["to"]
        if "ipBlock" in peer
        for port in rule["ports"]
    }
