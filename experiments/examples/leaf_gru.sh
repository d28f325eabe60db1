#!/bin/sh
# One's own data and model, from files to the scores of every user:
#   sh experiments/examples/leaf_gru.sh FOLDER OUT
# FOLDER has LEAF's JSON of Shakespeare, train/*.json and test/*.json. Its samples are dealt to clients by the next
# character, with much and with little skew; devices of uneven speed upload in groups of four.
set -e
folder=$1 out=$2 here=$(dirname "$0")
data="--dataset=leaf($folder) --task=$here/leaf_gru.py:task --num_clients=${CLIENTS:-20}"
rounds="--rounds=${ROUNDS:-200} --buffer_size=4 --local_epochs=1"
training="--batch_size=10 --local_lr=0.5 --server_lr=1 --eval_every=5 --schedule_file=$out/clock.npz"

mkdir -p "$out"
ccfl schedule $data $rounds --world=clock --step='log_normal(0,0.5,1)' --concurrency=8 --file="$out/clock.npz"

# Three methods and two skews. A signal stops it, here after an hour; its folder is enough to go on.
timeout -s INT "${SECONDS_AT_MOST:-3600}" ccfl sweep $data $rounds $training --validation=0.1 \
    --vary='method=fedavg,fedbuff,cc_fedsgd alpha=0.1,10' --out_dir="$out/sweep" || echo "stopped: $?"
ccfl sweep --resume --out_dir="$out/sweep"
ccfl table "$out/sweep"
ccfl plot "$out/sweep" --x=virtual_time --out="$out/curves.pdf,$out/curves.png"

ccfl train $data $rounds $training --alpha=10 --method=fedavg --out_dir="$out/best"
python "$here/leaf_gru_clients.py" "$out/best" "$folder"
