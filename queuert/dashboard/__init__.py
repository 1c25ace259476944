"""A dashboard of one app: a WSGI application that shows how things stand and lets an operator repair what is wrong.

    from queuert.dashboard import create_app

    application = create_app(app, token="...")      # for any WSGI server, under any path

Pages are made on the server; the browser needs no JavaScript, and uses a little of it to keep them up to date.
"""

try:
    import jinja2 as _jinja2
    import werkzeug as _werkzeug
except ImportError as error:
    raise ImportError("The dashboard needs its libraries: pip install 'queuert[dashboard]'.") from error

from queuert.dashboard.redaction import DEFAULT_NAMES, redact_by_name
from queuert.dashboard.wsgi import Dashboard, create_app

__all__ = ["DEFAULT_NAMES", "Dashboard", "create_app", "redact_by_name"]

del _jinja2, _werkzeug
