{{/* Names and labels. */}}

{{- define "fanfold.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "fanfold.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "fanfold.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "fanfold.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Labels of whatever belongs to the release. Given the root. */}}
{{- define "fanfold.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "fanfold.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* What the pods of a member, and no others, have. Given {root, member}. */}}
{{- define "fanfold.selector" -}}
app.kubernetes.io/name: {{ include "fanfold.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .member.component }}
{{- end }}

{{/* Metadata of an object of a member. Given {root, member}, and a suffix of its name if it has one. */}}
{{- define "fanfold.metadata" -}}
name: {{ .member.name }}{{ .suffix }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "fanfold.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .member.component }}
{{- end }}
