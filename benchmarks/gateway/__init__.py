"""Does the gateway serve unmodified agents, keep every token, and cost little?"""
