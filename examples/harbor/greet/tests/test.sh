#!/bin/bash
reward=1
for name in Ada "Grace Hopper"; do
    [ "$(bash greet.sh "$name")" = "Hello, $name!" ] || reward=0
done
echo $reward > /logs/verifier/reward.txt
