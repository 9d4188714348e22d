# docker build -t fedtide . && docker run --rm fedtide
# With a GPU: docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 ..., docker run --gpus all ...
FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /fedtide
COPY requirements.txt .
RUN pip install --no-cache-dir --index-url ${TORCH_INDEX} torch torchvision && pip install --no-cache-dir -r requirements.txt
COPY . .
ENTRYPOINT ["python", "sim.py"]
