{{/* Checks of checks.yaml that are made for several values. */}}

{{/* "true" if network policies let somebody from beyond the cluster call. Given the root. */}}
{{- define "fanfold.checks.outside" -}}
{{- range .Values.networkPolicy.callers }}
{{- if .cidr }}true{{ end }}
{{- end }}
{{- end }}

{{/*
An address must be at a port to which its network policy lets. Given {root, key, address, flow}: the value that has the
address, and which of `networkPolicy` is about it. Files are no addresses, and several hosts of a database have one port.
*/}}
{{- define "fanfold.checks.port" -}}
{{- if regexMatch "://[^/?#]*:[^/?#]*@" (.address | default "") }}
{{- fail (printf "%s: must have no password" .key) }}
{{- end }}
{{- $flow := index .root.Values.networkPolicy .flow }}
{{- $ports := splitList "," (join "," $flow.ports) }}
{{- $scheme := regexFind "^[a-z]+://" (.address | default "") }}
{{- $usual := get (dict "https://" "443" "http://" "80" "postgresql://" "5432" "postgres://" "5432") $scheme }}
{{- $host := .address | default "" | trimPrefix $scheme | regexFind "^[^/?#]*" | splitList "@" | last }}
{{- $port := regexFind ":[0-9]+$" $host | trimPrefix ":" | default $usual }}
{{- if and .root.Values.networkPolicy.enabled $host $port (not (has $port $ports)) }}
{{- fail (printf "%s: port %s is not one of networkPolicy.%s.ports" .key $port .flow) }}
{{- end }}
{{- end }}

{{/* What a pool says must go together. Given {root, key, values}. */}}
{{- define "fanfold.checks.pool" -}}
{{- with .values.workspace }}
{{- if regexMatch "^https?://[^/]*@" (.git.url | default "") }}
{{- fail (printf "%s.workspace.git.url: must have no name and password; workspace.git.credentials names their secret" $.key) }}
{{- end }}
{{- if and .claim .git.url }}
{{- fail (printf "%s.workspace.git.url: would be cloned by every node into the one workspace.claim" $.key) }}
{{- end }}
{{- include "fanfold.checks.port" (dict "root" $.root "key" (printf "%s.workspace.git.url" $.key) "address" .git.url "flow" "git") }}
{{- end }}
{{- with .values.autoscaling }}
{{- $hint := dig "capacity" "concurrency_hint" 16 $.values.config }}
{{- if and (ne .kind "none") (gt (int .minReplicas) (int .maxReplicas)) }}
{{- fail (printf "%s.autoscaling.minReplicas: must not be more than maxReplicas" $.key) }}
{{- end }}
{{- if and (eq .kind "hpa") (ge (int .stepsPerNode) (int $hint)) }}
{{- fail (printf "%s.autoscaling.stepsPerNode: hpa adds no node as none has more than config.capacity.concurrency_hint" $.key) }}
{{- end }}
{{- end }}
{{- $coordinator := .root.Values.coordinator.config | default dict }}
{{- $lease := dig "nodes" "lease" 15 $coordinator | float64 }}
{{- $grace := dig "nodes" "lease_grace" 6 $coordinator | float64 }}
{{- $stop := dig "step" "stop_grace" 5 .values.config | float64 }}
{{- if ge $stop $grace }}
{{- fail (printf "%s.config.step.stop_grace: must be less than coordinator.config.nodes.lease_grace, %v s" .key $grace) }}
{{- end }}
{{- if ge $stop (dig "placement" "cancel_wait" 9 $coordinator | float64) }}
{{- fail (printf "%s.config.step.stop_grace: must be less than coordinator.config.placement.cancel_wait" .key) }}
{{- end }}
{{- if ge (.values.config.silence_limit | default 10 | float64) (addf $lease $grace | float64) }}
{{- fail (printf "%s.config.silence_limit: must be less than coordinator.config.nodes.lease and lease_grace together" .key) }}
{{- end }}
{{- with ((.values.resources).limits | default dict) | dig "ephemeral-storage" "" }}
{{- $folder := ternary "0" $.values.workspace.size (not (empty $.values.workspace.claim)) }}
{{- $kept := addf (include "fanfold.bytes" $folder) (include "fanfold.bytes" $.values.scratch) }}
{{- if lt (float64 (include "fanfold.bytes" .)) (float64 $kept) }}
{{- fail (printf "%s.resources.limits.ephemeral-storage: must have room for scratch and workspace.size" $.key) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Jobs must outlive the time in which another coordinator takes their runs over. Given the root. */}}
{{- define "fanfold.checks.registry" -}}
{{- $journal := (.Values.coordinator.config).journal | default dict }}
{{- $away := addf (dig "lease" 10 $journal) (dig "outage" 30 $journal) (dig "claim" 0.5 $journal) | float64 }}
{{- if le (dig "producers" "grace" 60 (.Values.jobRegistry.config | default dict) | float64) $away }}
{{- fail (printf "jobRegistry.config.producers.grace: must be more than coordinator.config.journal has as lease, outage and claim together, %v s" $away) }}
{{- end }}
{{- end }}

{{/* What a quantity is as a number. Large whole ones come as 1e+10. */}}
{{- define "fanfold.bytes" -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- mulf (regexFind "^[0-9.]+(e\\+[0-9]+)?" (toString .)) (get $units (regexFind "[A-Za-z]*$" (toString .))) }}
{{- end }}
