# The images of the services, a target each: `docker build --target coordinator --tag fanfold-coordinator:0.1.0 .`, and
# likewise executor-node and job-registry. Python and its packages are pinned, here and in constraints.txt, also those that
# only build. Debian's are not: they get corrections under the same release, which an older image lacks.
ARG PYTHON=3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

FROM python:${PYTHON} AS build
WORKDIR /opt/source
# Not as an option, which is not heeded by what builds.
ENV PIP_CONSTRAINT=/opt/source/constraints.txt
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY coordinator coordinator
COPY executor_node executor_node
COPY fanfold fanfold
COPY job_registry job_registry
# No pip in what is copied from here: that of this stage installs there.
RUN python -m venv --without-pip /opt/fanfold
RUN python -m pip --python /opt/fanfold/bin/python install ".[otel,postgres]"

FROM build AS build-node
RUN python -m pip --python /opt/fanfold/bin/python install ".[llm,otel]"

FROM python:${PYTHON} AS service
RUN python -m pip uninstall --yes setuptools wheel pip
RUN useradd --uid 10001 --user-group --create-home --shell /usr/sbin/nologin fanfold
ENV PATH=/opt/fanfold/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /home/fanfold

FROM service AS coordinator
COPY --from=build /opt/fanfold /opt/fanfold
ENTRYPOINT ["fanfold", "serve", "coordinator"]
CMD ["--config", "/etc/fanfold/settings.yaml"]

FROM service AS job-registry
COPY --from=build /opt/fanfold /opt/fanfold
ENTRYPOINT ["fanfold", "serve", "job-registry"]
CMD ["--config", "/etc/fanfold/settings.yaml"]

FROM service AS executor-node
USER 0
# For workspaces of steps, and for those that are cloned.
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates git && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=build-node /opt/fanfold /opt/fanfold
ENTRYPOINT ["fanfold", "serve", "executor-node"]
CMD ["--config", "/etc/fanfold/settings.yaml"]
