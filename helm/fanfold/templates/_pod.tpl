{{/* The pod of a member, one named template for each concern. Given {root, member}. */}}
{{- define "fanfold.pod" -}}
metadata:
  labels:
    {{- include "fanfold.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .member.component }}
  annotations:
    checksum/settings: {{ include "fanfold.settings" . | sha256sum }}
    {{- with .member.values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "fanfold.fullname" .root }}-{{ .member.account }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "fanfold.pod.grace" . }}
  securityContext:
    {{- include "fanfold.pod.user" . | nindent 4 }}
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- include "fanfold.pod.place" . | trim | nindent 2 }}
  {{- if and .member.pool .member.values.workspace.git.url }}
  initContainers:
    - {{ include "fanfold.pod.clone" . | indent 6 | trim }}
  {{- end }}
  containers:
    - name: {{ .member.service }}
      {{- include "fanfold.pod.container" . | nindent 6 }}
      command: [fanfold, serve, {{ .member.service }}, --config, /etc/fanfold/settings.yaml]
      ports:
        {{- range include "fanfold.ports" . | fromYamlArray }}
        - {name: {{ .name }}, containerPort: {{ .port }}}
        {{- end }}
        - {name: metrics, containerPort: {{ .member.metrics }}}
      env:
        {{- include "fanfold.pod.variables" . | nindent 8 }}
      {{- include "fanfold.pod.probes" . | trim | nindent 6 }}
      resources:
        {{- toYaml .member.values.resources | nindent 8 }}
  volumes:
    {{- range include "fanfold.pod.files" . | fromYamlArray }}
    {{- if .volume }}
    - {{ toYaml (merge (dict "name" .name) .volume) | indent 6 | trim }}
    {{- end }}
    {{- end }}
{{- end }}

{{/* What all containers of a member have in common. */}}
{{- define "fanfold.pod.container" -}}
image: {{ include "fanfold.pod.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "fanfold.pod.limits" . | nindent 2 }}
volumeMounts:
  {{- range include "fanfold.pod.files" . | fromYamlArray }}
  - {{ toYaml (omit . "volume") | indent 4 | trim }}
  {{- end }}
{{- end }}

{{- define "fanfold.pod.image" -}}
{{- with .root.Values.image -}}
{{ $.member.values.image | default (printf "%s-%s:%s" .repository $.member.service (.tag | default $.root.Chart.AppVersion)) }}
{{- end }}
{{- end }}

{{/* Who the processes are: nobody in particular, and never root. */}}
{{- define "fanfold.pod.user" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* What a container may not do. */}}
{{- define "fanfold.pod.limits" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/*
Seconds from SIGTERM to SIGKILL: those that running calls and steps get, those in which steps are stopped, and 20 for
what the service then tells and tidies up.
*/}}
{{- define "fanfold.pod.grace" -}}
{{- with .member.values.config }}
{{- add (ceil .drain_grace) (ceil ((.step).stop_grace | default 0)) 20 }}
{{- end }}
{{- end }}

{{/* Which of the cluster's nodes it may run on, and how pods spread over them. */}}
{{- define "fanfold.pod.place" -}}
{{- with .member.values }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .root.Values.topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  - {{ toYaml . | indent 4 | trim }}
    labelSelector:
      matchLabels:
        {{- include "fanfold.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
How the cluster asks after it. A probe of gRPC knows no TLS, so with that it asks over HTTP, beside the metrics. Not live
is a service whose event loop hangs; not ready one that starts or drains.
*/}}
{{- define "fanfold.pod.probes" -}}
{{- $plain := eq .root.Values.tls.mode "none" }}
{{- range $probe, $times := dict
  "startupProbe" (dict "periodSeconds" 2 "timeoutSeconds" 5 "failureThreshold" 60)
  "livenessProbe" (dict "periodSeconds" 10 "timeoutSeconds" 5 "failureThreshold" 6)
  "readinessProbe" (dict "periodSeconds" 5 "timeoutSeconds" 5 "failureThreshold" 2) }}
{{ $probe }}:
  {{- if $plain }}
  grpc: {port: {{ $.member.port }}, service: {{ $.member.grpc }}}
  {{- else }}
  httpGet: {path: {{ ternary "/healthz" "/readyz" (eq $probe "livenessProbe") }}, port: metrics}
  {{- end }}
  {{- toYaml $times | nindent 2 }}
{{- end }}
{{- end }}

{{/* Variables: what only the running pod knows, and secrets of agents. */}}
{{- define "fanfold.pod.variables" -}}
- {name: HOME, value: /home/fanfold}
{{- if eq .member.service "coordinator" }}
- name: FANFOLD_COORDINATOR__NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: FANFOLD_COORDINATOR__ADVERTISE
  value: {{ ternary "$(POD_IP)" "[$(POD_IP)]" (eq .root.Values.listen "0.0.0.0") }}:{{ .member.mesh }}
{{- end }}
{{- range $name, $from := .member.values.secretEnv }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $from.secret }}, key: {{ $from.key }}}}
{{- end }}
{{- end }}

{{/*
Files that a container sees: mounts, each with the volume behind it unless one before has that. Everything else is
read-only, and so are all of these but for the last group.
*/}}
{{- define "fanfold.pod.files" -}}
{{- $values := .member.values }}
{{- $postgres := .root.Values.postgres }}
- name: settings
  mountPath: /etc/fanfold
  readOnly: true
  volume: {configMap: {name: {{ .member.name }}}}
{{- if include "fanfold.asksCluster" . }}
- name: cluster
  mountPath: /var/run/fanfold/cluster
  readOnly: true
  volume:
    projected:
      sources:
        - serviceAccountToken: {path: token, expirationSeconds: 3600}
        - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- if ne .root.Values.tls.mode "none" }}
- name: tls
  mountPath: /etc/fanfold-tls
  readOnly: true
  volume: {secret: {secretName: {{ include "fanfold.certificate" . }}, defaultMode: 0440}}
{{- else if eq .member.service "coordinator" }}
- name: mesh
  mountPath: /var/run/fanfold/mesh
  readOnly: true
  volume: {{ include "fanfold.pod.token" .root }}
{{- end }}
{{- if and .root.Values.auth.tokens.secret (include "fanfold.takesCallers" .) }}
- name: tokens
  mountPath: /etc/fanfold-tokens
  readOnly: true
  volume:
    secret:
      secretName: {{ .root.Values.auth.tokens.secret }}
      items: [{key: {{ .root.Values.auth.tokens.key }}, path: tokens.yaml}]
      defaultMode: 0440
{{- end }}
{{- if and .member.database $postgres.url (or $postgres.password.secret $postgres.ca.secret) }}
- name: database
  mountPath: /etc/fanfold-database
  readOnly: true
  volume:
    projected:
      defaultMode: 0440
      sources:
        {{- with $postgres.password }}
        {{- if .secret }}
        - secret: {name: {{ .secret }}, items: [{key: {{ .key }}, path: password}]}
        {{- end }}
        {{- end }}
        {{- with $postgres.ca }}
        {{- if .secret }}
        - secret: {name: {{ .secret }}, items: [{key: {{ .key }}, path: ca.crt}]}
        {{- end }}
        {{- end }}
{{- end }}
{{- if and .root.Values.traces.secret (include "fanfold.traces" .) }}
- name: traces
  mountPath: /etc/fanfold-traces
  readOnly: true
  volume: {secret: {secretName: {{ .root.Values.traces.secret }}, defaultMode: 0440}}
{{- end }}
{{- if and .member.pool (include "fanfold.hasAgents" .) }}
- name: agents
  mountPath: /etc/fanfold-agents
  readOnly: true
  volume:
    projected:
      sources:
        {{- if $values.agents }}
        - configMap: {name: {{ .member.name }}-agents}
        {{- end }}
        {{- with $values.agentsConfigMap }}
        - configMap: {name: {{ . }}}
        {{- end }}
{{- end }}
{{- if .member.pool }}
- name: workspace
  mountPath: /workspace
  {{- with $values.workspace }}
  {{- if .claim }}
  volume: {persistentVolumeClaim: {claimName: {{ .claim }}}}
  {{- else }}
  volume: {emptyDir: {sizeLimit: {{ .size }}}}
  {{- end }}
  {{- with .git.credentials }}
  {{- if .secret }}
- name: git
  mountPath: /etc/fanfold-git
  readOnly: true
  volume:
    secret: {secretName: {{ .secret }}, items: [{key: {{ .key }}, path: credentials}], defaultMode: 0440}
  {{- end }}
  {{- end }}
  {{- end }}
{{- else if not $postgres.url }}
- name: data
  mountPath: /var/lib/fanfold
  volume: {persistentVolumeClaim: {claimName: {{ $values.persistence.existingClaim | default .member.name }}}}
{{- end }}
- name: scratch
  mountPath: /tmp
  subPath: tmp
  volume: {emptyDir: {sizeLimit: {{ $values.scratch | default "1Gi" }}}}
- name: scratch
  mountPath: /home/fanfold
  subPath: home
{{- end }}

{{/* A token of the pod's service account for this mesh, as a volume. Given the root. */}}
{{- define "fanfold.pod.token" -}}
{projected: {sources: [{serviceAccountToken: {path: token, audience: {{ .Values.auth.kubernetes.audience }}, expirationSeconds: 3600}}]}}
{{- end }}

{{/*
Brings the workspace to the wanted revision, also where a container before this one has been there; git's own variables
name the helper, so that no file of settings is needed.
*/}}
{{- define "fanfold.pod.clone" -}}
{{- $git := .member.values.workspace.git -}}
name: workspace
{{ include "fanfold.pod.container" . }}
workingDir: /workspace
command: [sh, -euc]
args:
  - |
    git init --quiet
    git fetch --quiet --depth 1 "$REPOSITORY" "$REVISION"
    git checkout --quiet --force --detach FETCH_HEAD
env:
  - {name: HOME, value: /home/fanfold}
  - {name: REPOSITORY, value: {{ $git.url | quote }}}
  - {name: REVISION, value: {{ $git.ref | quote }}}
  {{- if $git.credentials.secret }}
  - {name: GIT_CONFIG_COUNT, value: "1"}
  - {name: GIT_CONFIG_KEY_0, value: credential.helper}
  - {name: GIT_CONFIG_VALUE_0, value: store --file=/etc/fanfold-git/credentials}
  {{- end }}
resources:
  {{- toYaml .member.values.resources | nindent 2 }}
{{- end }}
