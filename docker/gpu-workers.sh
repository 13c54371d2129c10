#!/usr/bin/env bash
# A Celery worker of the queue `gpu` for each GPU that this container sees, or for each that
# CUDA_VISIBLE_DEVICES names. When one ends, all end, and the container is started again.
set -euo pipefail
gpus=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)}
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
trap 'exit 0' TERM INT
for gpu in ${gpus//,/ }; do
    CUDA_VISIBLE_DEVICES=$gpu celery -A gpu_stage worker -Q gpu -P solo -E \
        -n "gpu$gpu@%h" --without-gossip --without-mingle &
done
wait -n
exit 1
