"""A process whose first thread ends while another one sleeps on: headless.py SECONDS."""

import ctypes
import sys
import threading
import time

threading.Thread(target=time.sleep, args=(float(sys.argv[1].split(".")[0]),)).start()
# exit(2) of this thread alone; from C, so that no interpreter lock goes with it.
libc = ctypes.CDLL(None)
libc.pthread_exit(None)
