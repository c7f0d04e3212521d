"""The host's own feature: simulations, which the queue computes."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from examples.host.database import Session
from examples.host.models import Simulation
from examples.host.users import CurrentUser
from zndraw_joblib import TaskResponse

router = APIRouter(prefix="/simulations")
JOB = "@global:analysis:Simulate"


class NewSimulation(BaseModel):
    """The body of a request that starts a simulation."""

    steps: int = Field(gt=0)


class SimulationRead(BaseModel):
    """A simulation as the API shows it."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    steps: int
    task_id: str | None
    energy: float | None
    error: str | None


@router.post("", status_code=202, response_model=SimulationRead)
async def start(new: NewSimulation, request: Request, session: Session, user: CurrentUser) -> Simulation:
    """Store a simulation and submit its task in one transaction."""
    simulation = Simulation(owner_id=user.id, steps=new.steps)
    session.add(simulation)
    await session.flush()
    payload = {"steps": new.steps, "simulation": simulation.id}
    task = await request.app.state.joblib.submit(
        JOB, payload, room=str(user.id), identity=user, session=session, on_end="save-energy"
    )
    simulation.task_id = str(task.id)
    await session.commit()
    return simulation


@router.get("", response_model=list[SimulationRead])
async def list_all(session: Session, user: CurrentUser) -> list[Simulation]:
    """List the caller's simulations, oldest first."""
    own = select(Simulation).where(Simulation.owner_id == user.id).order_by(Simulation.id)
    return list(await session.scalars(own))


@router.delete("/{simulation_id}", response_model=TaskResponse)
async def cancel(simulation_id: int, request: Request, session: Session, user: CurrentUser) -> TaskResponse:
    """Cancel a simulation."""
    simulation = await session.get(Simulation, simulation_id)
    if simulation is None or simulation.owner_id != user.id or simulation.task_id is None:
        raise HTTPException(404, f"There is no simulation {simulation_id}")
    cancelled: TaskResponse = await request.app.state.joblib.cancel(simulation.task_id, identity=user)
    return cancelled


def saver(sessions: async_sessionmaker[AsyncSession]) -> Callable[[TaskResponse], Awaitable[Any]]:
    """Return the function that the queue calls after the end of a simulation's task, at least once."""

    async def save(task: TaskResponse) -> None:
        values = {"energy": task.result, "error": task.error}
        async with sessions() as session:
            await session.execute(
                update(Simulation).where(Simulation.task_id == str(task.id)).values(**values)
            )
            await session.commit()

    return save
