{{/*
Who may connect to whom. Each flow is named: what a member takes in, and where it may connect to. Anything else is refused
where the cluster's network enforces policies; the kubelet's probes are let in by it anyway.
*/}}

{{/* What a member takes in. Given {root, member}. */}}
{{- define "fanfold.flows.in" -}}
{{- $policy := .root.Values.networkPolicy }}
# coordinators: steps for nodes, jobs for the registry, runs that another coordinator holds
- from:
    {{- include "fanfold.flows.members" (dict "root" .root "service" "coordinator") | trim | nindent 4 }}
  ports: [{port: {{ .member.mesh }}}]
{{- if and (include "fanfold.takesCallers" .) $policy.callers }}
# callers
- from:
    {{- include "fanfold.flows.peers" $policy.callers | trim | nindent 4 }}
  ports: [{port: {{ .member.port }}}]
{{- end }}
{{- if and (eq .member.service "coordinator") .root.Values.auth.kubernetes.enabled }}
# the test of the release
- from:
    - podSelector:
        matchLabels:
          {{- include "fanfold.selector" (dict "root" .root "member" (dict "component" "test")) | nindent 10 }}
  ports: [{port: {{ .member.port }}}]
{{- end }}
{{- with $policy.scrapers }}
# who reads metrics
- from:
    {{- include "fanfold.flows.peers" . | trim | nindent 4 }}
  ports: [{port: {{ $.member.metrics }}}]
{{- end }}
{{- end }}

{{/* Where a member may connect to. Given {root, member}. */}}
{{- define "fanfold.flows.out" -}}
{{- $policy := .root.Values.networkPolicy }}
# names
{{- include "fanfold.flows.destination" (merge (dict "protocols" (list "UDP" "TCP")) $policy.dns) }}
{{- if eq .member.service "coordinator" }}
{{- range include "fanfold.members" .root | fromYamlArray }}
# {{ .component }}
- to:
    - podSelector:
        matchLabels:
          {{- include "fanfold.selector" (dict "root" $.root "member" .) | nindent 10 }}
  ports: [{port: {{ .mesh }}}]
{{- end }}
{{- if (.member.values.config.nodes).static }}
# nodes that are not the chart's
{{- include "fanfold.flows.destination" $policy.nodes }}
{{- end }}
{{- end }}
{{- if include "fanfold.asksCluster" . }}
# the cluster, for the keys of its tokens
{{- include "fanfold.flows.destination" $policy.apiServer }}
{{- end }}
{{- if and .root.Values.auth.jwt (include "fanfold.takesCallers" .) }}
# issuers, for the keys of theirs
{{- include "fanfold.flows.destination" $policy.issuers }}
{{- end }}
{{- if and .member.database .root.Values.postgres.url }}
# the database
{{- include "fanfold.flows.destination" $policy.database }}
{{- end }}
{{- if include "fanfold.traces" . }}
# who takes traces
{{- include "fanfold.flows.destination" $policy.traces }}
{{- end }}
{{- if .member.pool }}
{{- if .member.values.workspace.git.url }}
# the workspace's repository
{{- include "fanfold.flows.destination" $policy.git }}
{{- end }}
{{- range .member.values.egress }}
# what this pool's agents may reach
{{- include "fanfold.flows.destination" (dict "to" (list (omit . "ports")) "ports" .ports) }}
{{- end }}
{{- end }}
{{- end }}

{{/* No destination is none, and not, as it would be for the cluster, all. */}}
{{- define "fanfold.flows.destination" }}
{{- if .to }}
- to:
    {{- include "fanfold.flows.peers" .to | trim | nindent 4 }}
  ports:
    {{- range $port := .ports }}
    {{- range $.protocols | default (list "TCP") }}
    - {port: {{ $port }}, protocol: {{ . }}}
    {{- end }}
    {{- end }}
{{- end }}
{{- end }}

{{/* The pods of all members of a service. Given {root, service}. */}}
{{- define "fanfold.flows.members" -}}
{{- range include "fanfold.members" .root | fromYamlArray }}
{{- if eq .service $.service }}
- podSelector:
    matchLabels:
      {{- include "fanfold.selector" (dict "root" $.root "member" .) | nindent 6 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Peers as the values have them, in the cluster's words. Given a list of {namespaces, pods, cidr}. */}}
{{- define "fanfold.flows.peers" -}}
{{- range . }}
{{- if .cidr }}
- ipBlock: {cidr: {{ .cidr | quote }}}
{{- else }}
- podSelector:
    matchLabels: {{ toJson (default dict .pods) }}
  {{- if hasKey . "namespaces" }}
  namespaceSelector:
    matchLabels: {{ toJson .namespaces }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
