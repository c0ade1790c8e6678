{{/*
The members of the mesh: the coordinators, the job registry and each pool of executor nodes. All templates that make
something for each member go through this list, so that they say it once.

service    what `fanfold serve` calls it
component  its label, and the end of its name
port       where it serves gRPC to callers
mutual     where it serves gRPC to those who have a certificate, if TLS is on
mesh       the one of the two that the other services use
metrics    where it serves metrics and health
values     what is configured for it
*/}}
{{- define "fanfold.members" -}}
{{- $root := . }}
{{- $members := list
  (dict "service" "coordinator" "component" "coordinator" "account" "coordinator" "secret" "coordinator"
    "grpc" "fanfold.v1.Coordinator" "database" "journal" "port" 7400 "mutual" 7440 "metrics" 7480
    "values" .Values.coordinator)
  (dict "service" "job-registry" "component" "job-registry" "account" "job-registry" "secret" "jobRegistry"
    "grpc" "fanfold.v1.JobRegistry" "database" "store" "port" 7401 "mutual" 7441 "metrics" 7482
    "values" .Values.jobRegistry) }}
{{- range $pool, $values := .Values.executorNodes.pools }}
  {{- $members = append $members (dict "service" "executor-node" "component" (printf "node-%s" $pool)
    "account" "executor-node" "secret" "executorNode" "grpc" "fanfold.v1.ExecutorNode" "port" 7410 "mutual" 7450
    "metrics" 7481 "pool" $pool "values" (mergeOverwrite (deepCopy $root.Values.executorNodes.defaults) $values)) }}
{{- end }}
{{- range $members }}
  {{- $_ := set . "values" (merge (dict "config" dict) (deepCopy .values)) }}
  {{- $_ := set . "name" (printf "%s-%s" (include "fanfold.fullname" $root) .component) }}
  {{- $_ := set . "mesh" (ternary .port .mutual (eq $root.Values.tls.mode "none")) }}
{{- end }}
{{- toYaml $members }}
{{- end }}

{{/* The ports of a member at which it serves gRPC; callers use the first one. */}}
{{- define "fanfold.ports" -}}
{{- if ne .member.mesh .member.port }}
- {name: grpcs, port: {{ .member.port }}, appProtocol: https}
- {name: grpcs-mutual, port: {{ .member.mutual }}, appProtocol: https}
{{- else }}
- {name: grpc, port: {{ .member.port }}, appProtocol: kubernetes.io/h2c}
{{- end }}
{{- end }}

{{/* The SPIFFE id of those who have a service's certificates. Given {root, account}. */}}
{{- define "fanfold.identity" -}}
spiffe://{{ .root.Values.tls.trustDomain }}/{{ .root.Release.Namespace }}/{{ include "fanfold.fullname" .root }}/{{ .account }}
{{- end }}

{{/* The name that all certificates of the mesh have, by which coordinators know the others at whatever address. */}}
{{- define "fanfold.serverName" -}}
{{ include "fanfold.fullname" . }}.mesh
{{- end }}

{{/* The name of the Secret with a member's certificate. */}}
{{- define "fanfold.certificate" -}}
{{- if eq .root.Values.tls.mode "certManager" }}
{{- include "fanfold.fullname" .root }}-{{ .member.account }}-tls
{{- else }}
{{- index .root.Values.tls.secrets .member.secret }}
{{- end }}
{{- end }}

{{/* "true" if a member knows callers by tokens of the cluster: nodes are called by coordinators alone, who have certificates if TLS is on. */}}
{{- define "fanfold.asksCluster" -}}
{{- if and .root.Values.auth.kubernetes.enabled (or (eq .root.Values.tls.mode "none") (include "fanfold.takesCallers" .)) }}true{{ end }}
{{- end }}

{{/* "true" if a member sends traces. */}}
{{- define "fanfold.traces" -}}
{{- if (.member.values.config.traces).endpoint }}true{{ end }}
{{- end }}

{{/* "true" if callers, and not only the mesh's own services, may call a member. */}}
{{- define "fanfold.takesCallers" -}}
{{- if or (ne .member.service "executor-node") .member.values.config.direct_callers }}true{{ end }}
{{- end }}
