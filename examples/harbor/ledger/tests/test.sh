#!/bin/bash
[ "$(cat total 2> /dev/null)" = "$(cat /tests/wanted)" ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
