#!/bin/bash
awk -F, 'NR == FNR { back[$1] = 1; next } FNR > 1 && !back[$1] { sum += $2 } END { print sum }' \
    refunds.csv ledger.csv > total
