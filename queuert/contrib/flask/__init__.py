"""Flask: an extension with the job types, the app's own database, and commands.

queue = FlaskQueuert()

@queue.job
def send_receipt(job): ...

def create_app():
    app = Flask(__name__)
    db.init_app(app)
    queue.init_app(app, db=db)
"""

from queuert.contrib.flask.extension import FlaskQueuert

__all__ = ["FlaskQueuert"]
