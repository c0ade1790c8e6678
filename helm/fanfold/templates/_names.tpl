{{/* Names and labels. */}}

{{- define "fanfold.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/*
What all names begin with, in at most 30 characters: a StatefulSet may have 52, as the cluster makes a label of its name
and 11 more, and those of pools take up to 22. Longer ones end in their hash, so that two that begin alike differ.
*/}}
{{- define "fanfold.fullname" -}}
{{- $own := include "fanfold.name" . }}
{{- $made := ternary .Release.Name (printf "%s-%s" .Release.Name $own) (contains $own .Release.Name) }}
{{- $name := .Values.fullnameOverride | default $made | replace "." "-" }}
{{- if gt (len $name) 30 }}
{{- $name = printf "%s-%s" (trunc 23 $name) (sha256sum $name | trunc 6) }}
{{- end }}
{{- $name }}
{{- end }}

{{/* Labels of whatever belongs to the release. Given the root. */}}
{{- define "fanfold.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "fanfold.name" . | quote }}
app.kubernetes.io/instance: {{ quote .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* What the pods of a member, and no others, have. Given {root, member}. */}}
{{- define "fanfold.selector" -}}
app.kubernetes.io/name: {{ include "fanfold.name" .root | quote }}
app.kubernetes.io/instance: {{ quote .root.Release.Name }}
app.kubernetes.io/component: {{ .member.component }}
{{- end }}

{{/* Metadata of an object of a member. Given {root, member}, and a suffix of its name if it has one. */}}
{{- define "fanfold.metadata" -}}
name: {{ .member.name }}{{ .suffix }}
namespace: {{ quote .root.Release.Namespace }}
labels:
  {{- include "fanfold.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .member.component }}
{{- end }}
