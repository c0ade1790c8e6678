{{/*
The settings of each service. The chart sees to where it listens, who may call it and where it finds the others; all else
is what `config` of the member says. Given {root, member}.
*/}}
{{- define "fanfold.settings" -}}
{{- $owned := mergeOverwrite
  (include "fanfold.settings.serving" . | fromYaml)
  (include (printf "fanfold.settings.%s" .member.service) . | fromYaml) }}
{{- toYaml (mergeOverwrite (deepCopy .member.values.config) $owned) }}
{{- end }}

{{- define "fanfold.settings.serving" -}}
{{- $listen := .root.Values.listen }}
listen: {{ printf "%s:%v" $listen .member.port | quote }}
metrics_listen: {{ printf "%s:%v" $listen .member.metrics | quote }}
tls:
{{- if eq .root.Values.tls.mode "none" }}
  plaintext: true
{{- else }}
  certificate: /etc/fanfold-tls/tls.crt
  key: /etc/fanfold-tls/tls.key
  client_ca: /etc/fanfold-tls/ca.crt
  mutual_listen: {{ printf "%s:%v" $listen .member.mutual | quote }}
{{- end }}
auth:
  {{- include "fanfold.settings.auth" . | nindent 2 }}
{{- end }}

{{- define "fanfold.settings.auth" -}}
{{- $auth := .root.Values.auth }}
{{- $callers := include "fanfold.takesCallers" . }}
{{- $asks := include "fanfold.asksCluster" . }}
{{- if ne .root.Values.tls.mode "none" }}
certificates:
  - match: {{ include "fanfold.identity" (dict "root" .root "account" "coordinator") | quote }}
    principal: coordinator
    roles: [coordinator]
{{- end }}
{{- if or $asks (and $callers $auth.jwt) }}
jwt:
  {{- if $asks }}
  {{- include "fanfold.settings.cluster" . | nindent 2 }}
  {{- end }}
  {{- if $callers }}
  {{- with $auth.jwt }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- end }}
{{- end }}
{{- if and $callers $auth.tokens.secret }}
tokens: /etc/fanfold-tokens/tokens.yaml
{{- end }}
{{- end }}

{{/* The cluster as an issuer of tokens. */}}
{{- define "fanfold.settings.cluster" -}}
- issuer: {{ .root.Values.auth.kubernetes.issuer | quote }}
  audience: {{ .root.Values.auth.kubernetes.audience | quote }}
  jwks: https://kubernetes.default.svc/openid/v1/jwks
  jwks_ca: /var/run/fanfold/cluster/ca.crt
  jwks_token_file: /var/run/fanfold/cluster/token
  default_roles: []
  principals:
    {{- $own := printf "%s/%s" .root.Release.Namespace (include "fanfold.fullname" .root) }}
    {{- $principals := dict (printf "%s-coordinator" $own) (list "coordinator") }}
    {{- if include "fanfold.takesCallers" . }}
    {{- $callers := dict (printf "%s-caller" $own) (list "caller") }}
    {{- $principals = merge $principals (.root.Values.auth.kubernetes.principals | default dict) $callers }}
    {{- end }}
    {{- range $account, $roles := $principals }}
    system:serviceaccount:{{ replace "/" ":" $account }}: {{ toJson $roles }}
    {{- end }}
{{- end }}

{{/* What a service shows when it calls others. */}}
{{- define "fanfold.settings.client" -}}
{{- if eq .root.Values.tls.mode "none" }}
token_file: /var/run/fanfold/mesh/token
plaintext: true
{{- else }}
ca: /etc/fanfold-tls/ca.crt
certificate: /etc/fanfold-tls/tls.crt
key: /etc/fanfold-tls/tls.key
server_name: {{ include "fanfold.serverName" .root }}
{{- end }}
{{- end }}

{{- define "fanfold.settings.database" -}}
{{- with .root.Values.postgres }}
{{- if .url }}
url: {{ .url | quote }}
{{- if .password.secret }}
password_file: /etc/fanfold-database/password
{{- end }}
{{- else }}
path: /var/lib/fanfold/{{ $.member.database }}.db
{{- end }}
{{- end }}
{{- end }}

{{- define "fanfold.settings.coordinator" -}}
client:
  {{- include "fanfold.settings.client" . | nindent 2 }}
journal:
  {{- include "fanfold.settings.database" . | nindent 2 }}
nodes:
  dns:
  {{- $root := .root }}
  {{- range include "fanfold.members" .root | fromYamlArray }}
  {{- if .pool }}
    - {{ printf "%s.%s.svc:%v" .name $root.Release.Namespace .mesh }}
  {{- end }}
  {{- end }}
{{- range include "fanfold.members" .root | fromYamlArray }}
{{- if eq .service "job-registry" }}
registry: {{ printf "%s.%s.svc:%v" .name $root.Release.Namespace .mesh }}
{{- end }}
{{- end }}
{{- end }}

{{- define "fanfold.settings.job-registry" -}}
store:
  {{- include "fanfold.settings.database" . | nindent 2 }}
{{- end }}

{{- define "fanfold.settings.executor-node" -}}
workspace: {{ include "fanfold.workspace" . }}
agents:
  scratch: /tmp
  {{- if include "fanfold.hasAgents" . }}
  directory: /etc/fanfold-agents
  {{- end }}
{{- end }}

{{/* Where steps work. A clone is in a folder of its own, as git trusts none that is another's, and volumes are root's. */}}
{{- define "fanfold.workspace" -}}
/workspace{{ if .member.values.workspace.git.url }}/repository{{ end }}
{{- end }}

{{/* "true" if a pool has the agents that nodes bring along. Given the root. */}}
{{- define "fanfold.hasBuiltin" -}}
{{- range include "fanfold.members" . | fromYamlArray }}
{{- if and .pool (dig "agents" "builtin" true .values.config) }}true{{ end }}
{{- end }}
{{- end }}

{{/* "true" if a pool has agent files. */}}
{{- define "fanfold.hasAgents" -}}
{{- if or .member.values.agents .member.values.agentsConfigMap }}true{{ end }}
{{- end }}
