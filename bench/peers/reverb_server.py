"""Reverb's own server with one queue, for `forebay-bench buffer`: reverb_server.py PORT. Runs until it is killed."""
import sys
import time

import reverb

server = reverb.Server([reverb.Table.queue("q", max_size=8192)], port=int(sys.argv[1]))
print("ready", flush=True)
while True:
    time.sleep(3600)
