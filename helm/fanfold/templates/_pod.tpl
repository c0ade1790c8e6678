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
  {{- with include "fanfold.pod.place" . | trim }}
  {{- nindent 2 . }}
  {{- end }}
  {{- include "fanfold.pod.spread" . | trim | nindent 2 }}
  {{- if and .member.pool .member.values.workspace.git.url }}
  initContainers:
    - {{ include "fanfold.pod.clone" . | indent 6 | trim }}
  {{- end }}
  containers:
    - name: {{ .member.service }}
      {{- include "fanfold.pod.container" (merge (dict "for" "service") .) | nindent 6 }}
      command: [fanfold, serve, {{ .member.service }}, --config, /etc/fanfold/settings.yaml]
      ports:
        {{- range include "fanfold.ports" . | fromYamlArray }}
        - {name: {{ .name }}, containerPort: {{ .port }}}
        {{- end }}
        - {name: metrics, containerPort: {{ .member.metrics }}}
      env:
        {{- include "fanfold.pod.variables" . | nindent 8 }}
      {{- include "fanfold.pod.probes" . | trim | nindent 6 }}
      {{- with include "fanfold.pod.last" . }}
      lifecycle: {preStop: {exec: {command: [sleep, {{ quote . }}]}}}
      {{- end }}
      resources:
        {{- toYaml .member.values.resources | nindent 8 }}
  volumes:
    {{- range include "fanfold.pod.files" . | fromYamlArray }}
    {{- if .volume }}
    - {{ toYaml (merge (dict "name" .name) .volume) | indent 6 | trim }}
    {{- end }}
    {{- end }}
{{- end }}

{{/* What all containers of a member have in common. Given {root, member, for}, see files. */}}
{{- define "fanfold.pod.container" -}}
image: {{ include "fanfold.pod.image" . | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "fanfold.pod.limits" . | nindent 2 }}
volumeMounts:
  {{- range include "fanfold.pod.files" . | fromYamlArray }}
  {{- if has $.for (.for | default (list "service")) }}
  - {{ toYaml (omit . "volume" "for") | indent 4 | trim }}
  {{- end }}
  {{- end }}
{{- end }}

{{- define "fanfold.pod.image" -}}
{{- with .root.Values.image -}}
{{ $.member.values.image | default (printf "%s-%s:%s" .repository $.member.service (.tag | default $.root.Chart.AppVersion)) }}
{{- end }}
{{- end }}

{{/* Who the processes are: nobody in particular, and never root. Given {root}. */}}
{{- define "fanfold.pod.user" -}}
runAsNonRoot: true
{{- with .root.Values.user }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
{{- end }}
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
Seconds until SIGKILL: those before SIGTERM, those that running calls and steps then get, those in which steps are
stopped, and 20 for what the service then tells and tidies up.
*/}}
{{- define "fanfold.pod.grace" -}}
{{- $config := .member.values.config }}
{{- $stop := ternary (($config.step).stop_grace | default 5) 0 (hasKey .member "pool") }}
{{- add (include "fanfold.pod.last" .) (ceil ($config.drain_grace | default 30)) (ceil $stop) 20 }}
{{- end }}

{{/*
Seconds before SIGTERM in which a service still takes calls, as it takes the cluster a while until it sends those to
others of its kind; empty if there are never others.
*/}}
{{- define "fanfold.pod.last" -}}
{{- if and .member.database .root.Values.postgres.url }}5{{ end }}
{{- end }}

{{/* Seconds that a service may take to start: a large database may have to be brought up to date first. */}}
{{- define "fanfold.pod.start" -}}
1800
{{- end }}

{{/* Which of the cluster's nodes it may run on, and with which Secrets those get its image. */}}
{{- define "fanfold.pod.place" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ quote . }}
  {{- end }}
{{- end }}
{{- with .member.values }}
{{- with .priorityClassName }}
priorityClassName: {{ quote . }}
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
{{- end }}

{{/* How the pods of a member spread over the cluster. */}}
{{- define "fanfold.pod.spread" -}}
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
  "startupProbe" (dict "periodSeconds" 2 "timeoutSeconds" 5 "failureThreshold" (div (include "fanfold.pod.start" .) 2))
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
  value: "{{ ternary "$(POD_IP)" "[$(POD_IP)]" (eq .root.Values.listen "0.0.0.0") }}:{{ .member.mesh }}"
{{- end }}
{{- range $name, $from := .member.values.secretEnv }}
- name: {{ quote $name }}
  valueFrom: {secretKeyRef: {name: {{ quote $from.secret }}, key: {{ quote $from.key }}}}
{{- end }}
{{- end }}

{{/*
Files that containers see: mounts, each with the volume behind it unless one before has that, and the containers it is for
(`service`, which is the default, or `clone`). Everything else is read-only, and so are all of these but for the last group.
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
  volume: {secret: {secretName: {{ include "fanfold.certificate" . | quote }}, defaultMode: 0440}}
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
      secretName: {{ quote .root.Values.auth.tokens.secret }}
      items: [{key: {{ quote .root.Values.auth.tokens.key }}, path: tokens.yaml}]
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
        - secret: {name: {{ quote .secret }}, items: [{key: {{ quote .key }}, path: password}]}
        {{- end }}
        {{- end }}
        {{- with $postgres.ca }}
        {{- if .secret }}
        - secret: {name: {{ quote .secret }}, items: [{key: {{ quote .key }}, path: ca.crt}]}
        {{- end }}
        {{- end }}
{{- end }}
{{- if and .root.Values.traces.secret (include "fanfold.traces" .) }}
- name: traces
  mountPath: /etc/fanfold-traces
  readOnly: true
  volume: {secret: {secretName: {{ quote .root.Values.traces.secret }}, defaultMode: 0440}}
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
        - configMap: {name: {{ quote . }}}
        {{- end }}
{{- end }}
{{- if .member.pool }}
- name: workspace
  mountPath: /workspace
  for: [service, clone]
  {{- with $values.workspace }}
  {{- if .claim }}
  volume: {persistentVolumeClaim: {claimName: {{ quote .claim }}}}
  {{- else }}
  volume: {emptyDir: {sizeLimit: {{ quote .size }}}}
  {{- end }}
  {{- with .git.credentials }}
  {{- if .secret }}
- name: git
  mountPath: /etc/fanfold-git
  for: [clone]  # and not for steps, which would read them
  readOnly: true
  volume:
    secret: {secretName: {{ quote .secret }}, items: [{key: {{ quote .key }}, path: credentials}], defaultMode: 0440}
  {{- end }}
  {{- end }}
  {{- end }}
{{- else if not $postgres.url }}
- name: data
  mountPath: /var/lib/fanfold
  volume: {persistentVolumeClaim: {claimName: {{ $values.persistence.existingClaim | default .member.name | quote }}}}
{{- end }}
- name: scratch
  mountPath: /tmp
  subPath: tmp
  for: [service, clone]
  volume: {emptyDir: {sizeLimit: {{ $values.scratch | default "1Gi" | quote }}}}
- name: scratch
  mountPath: /home/fanfold
  subPath: home
  for: [service, clone]
{{- end }}

{{/* A token of the pod's service account for this mesh, as a volume. Given the root. */}}
{{- define "fanfold.pod.token" -}}
{projected: {sources: [{serviceAccountToken: {path: token, audience: {{ quote .Values.auth.kubernetes.audience }}, expirationSeconds: 3600}}]}}
{{- end }}

{{/*
Brings the workspace to the wanted revision, also where a container before this one has been there; git's own variables
name the helper, so that no file of settings is needed.
*/}}
{{- define "fanfold.pod.clone" -}}
{{- $git := .member.values.workspace.git -}}
name: workspace
{{ include "fanfold.pod.container" (merge (dict "for" "clone") .) }}
workingDir: /workspace
command: [sh, -euc]
args:
  - |
    git init --quiet {{ include "fanfold.workspace" . }}
    cd {{ include "fanfold.workspace" . }}
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
