"""The service chassis over gRPC: what every service and every client shares, and nothing that knows a service."""
