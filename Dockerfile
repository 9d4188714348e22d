# Three images, for amd64 and (with --platform linux/arm64) for boards:
#     docker build -t fedtide . && docker run --rm fedtide                    the simulator
#     docker build -t fedtide-superlink --target superlink .                  the server of a federation
#     docker build -t fedtide-device --target device .                        a board, see docs/deploy.md
# With a GPU: docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 ..., docker run --gpus all ...
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

FROM python:3.11-slim AS base
RUN apt-get update && apt-get install --yes --no-install-recommends openssh-client openssl \
    && rm -rf /var/lib/apt/lists/* && useradd --system --uid 10001 --home-dir /var/lib/fedtide fedtide \
    && install -d -o fedtide /etc/fedtide /var/lib/fedtide /var/lib/fedtide/state
ENV BIN=/usr/local/bin FLWR_HOME=/var/lib/fedtide/flower FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
WORKDIR /opt/fedtide

FROM base AS device
ARG TORCH_INDEX
ARG REQUIREMENTS=requirements-device-torch.txt
COPY deploy deploy
RUN pip install --no-cache-dir --extra-index-url "${TORCH_INDEX}" -r "deploy/${REQUIREMENTS}"
COPY clients clients
COPY fedtide fedtide
COPY strategies strategies
COPY traces traces
USER fedtide
ENV STATE_DIR=/var/lib/fedtide/state
CMD ["deploy/device.sh"]

FROM base AS whole
ARG TORCH_INDEX
COPY requirements.txt .
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX}" torch torchvision \
    && pip install --no-cache-dir -r requirements.txt
COPY . .

FROM whole AS superlink
USER fedtide
EXPOSE 8000
CMD ["deploy/superlink.sh"]

FROM whole AS simulator
ENTRYPOINT ["python", "sim.py"]
