"""Plants on FastAPI and SQLite: SQLModel for the table and the bodies, a dependency for the session and one for the bearer
token, as the documentation of FastAPI recommends. Run by uvicorn; PLANTS_FILE names the database."""

import hashlib
import os
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from sqlmodel import Field, Session, SQLModel, create_engine, select


class PlantBase(SQLModel):
    name: str
    tag: str | None = None


class NewPlant(PlantBase):
    id: int


class Plant(PlantBase, table=True):
    __tablename__ = "plants"
    user_id: int = Field(primary_key=True)
    plant_id: int = Field(primary_key=True)


class Token(SQLModel, table=True):
    __tablename__ = "tokens"
    hash: bytes = Field(primary_key=True)
    user_id: int


engine = create_engine(f"sqlite:///{os.environ['PLANTS_FILE']}", connect_args={"check_same_thread": False})


@event.listens_for(engine, "connect")
def set_pragmas(connection, _):
    # Acknowledged plants survive a power cut, as those of plantstore do.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


def get_session():
    with Session(engine) as session:
        yield session


SessionDep = Annotated[Session, Depends(get_session)]


def get_user(session: SessionDep, credentials: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]):
    token = session.get(Token, hashlib.sha256(credentials.credentials.encode()).digest())
    if token is None:
        raise HTTPException(401)
    return token.user_id


UserDep = Annotated[int, Depends(get_user)]
app = FastAPI()


@app.get("/plants", response_model=list[PlantBase])
def list_plants(session: SessionDep, user: UserDep, limit: int = 20):
    return session.exec(select(Plant).where(Plant.user_id == user).order_by(Plant.plant_id).limit(limit)).all()


@app.post("/plants", response_model=PlantBase)
def create_plant(session: SessionDep, user: UserDep, plant: NewPlant):
    session.add(Plant(user_id=user, plant_id=plant.id, name=plant.name, tag=plant.tag))
    try:
        session.commit()
    except IntegrityError as error:
        raise HTTPException(409) from error
    return plant
