"""`gunicorn -c gunicorn.conf.py "shop:create_app()"`: the application is loaded once, before the workers are forked.

Nothing more is needed for the queue: a forked worker never uses a connection of its parent. `worker_class = "gthread"` with
`threads = 8` works the same way.
"""

import os

bind = os.environ.get("SHOP_BIND", "127.0.0.1:8000")
workers = int(os.environ.get("SHOP_WORKERS", "2"))
worker_class = os.environ.get("SHOP_WORKER_CLASS", "sync")
threads = int(os.environ.get("SHOP_THREADS", "1"))
preload_app = True
