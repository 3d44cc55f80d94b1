# Nodes in containers from an image of their own, for ray.init(backend="docker", image="raytwin"):
#
#     docker build -t raytwin .
#
# BASE: any Debian or Ubuntu with the driver's version of Python, as functions travel as bytecode.
# Without an image the containers have this machine's interpreter and modules, mounted read-only.
ARG BASE=python:3.11-slim
FROM ${BASE}

# Links between nodes are broken by packet filters.
RUN command -v iptables >/dev/null \
 || { apt-get -qq update && apt-get -qq install -y --no-install-recommends iptables \
      && rm -rf /var/lib/apt/lists/*; }

COPY . /tmp/source
RUN python3 -m venv /opt/raytwin \
 && /opt/raytwin/bin/python -m pip install --quiet --no-cache-dir /tmp/source \
 && rm -rf /tmp/source
ENV PATH=/opt/raytwin/bin:$PATH

# The folder that a node may write to; init(container_disk_bytes=...) mounts one of that size.
RUN mkdir -m 1777 /raytwin
CMD ["raytwin", "doctor"]
