#!/bin/bash
cmp -s unique.txt <(printf 'apple\nfig\npear\n') && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
