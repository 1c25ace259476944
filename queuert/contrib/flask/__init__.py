"""Flask: an extension with the job types, the app's own database, and commands.

queue = FlaskQueuert()

@queue.job
def send_receipt(job): ...

def create_app():
    app = Flask(__name__)
    db.init_app(app)
    queue.init_app(app, db=db)
"""

from typing import TYPE_CHECKING, Any

from queuert.contrib.flask.extension import FlaskQueuert

if TYPE_CHECKING:
    from queuert.contrib.flask.dashboard import dashboard_blueprint

__all__ = ["FlaskQueuert", "dashboard_blueprint"]


def __getattr__(name: str) -> Any:
    if name == "dashboard_blueprint":  # its libraries are an extra
        from queuert.contrib.flask.dashboard import dashboard_blueprint

        return dashboard_blueprint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
