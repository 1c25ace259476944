"""SQLAlchemy 2: the library on your engine's connections, in your session's transactions.

app = Queuert(SQLAlchemyProvider(engine, session_factory=sessionmaker(engine)))

with Session(engine) as session:
    session.add(order)
    app.start_chain(charge_card, Order(order.id), conn=session)
    session.commit()
"""

from queuert.contrib.sqlalchemy.provider import SQLAlchemyProvider

__all__ = ["SQLAlchemyProvider"]
