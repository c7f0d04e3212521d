"""A receiver of webhooks: it verifies each delivery, answers at once, and handles each event once.

WEBHOOK_SECRET=whsec_… uvicorn examples.receiver:app --port 8080
"""

import os
from collections import OrderedDict

from fastapi import FastAPI, HTTPException, Request
from standardwebhooks import Webhook, WebhookVerificationError

app = FastAPI()
# In a real program a table of the database that also has what `handle` changes.
seen: OrderedDict[str, None] = OrderedDict()


def handle(event: dict) -> None:
    """Do what the event asks for."""
    task = event["data"]
    print(event["type"], task.get("job_name"), task.get("status"), task.get("result"), flush=True)


@app.post("/hook", status_code=204)
async def receive(request: Request) -> None:
    """Verify a delivery by the secret; its body must be the bytes that arrived."""
    try:
        event = Webhook(os.environ["WEBHOOK_SECRET"]).verify(await request.body(), dict(request.headers))
    except WebhookVerificationError as error:
        raise HTTPException(401, str(error)) from error
    # A delivery may arrive more than once, with the same id.
    message = request.headers["webhook-id"]
    if message in seen:
        return
    handle(event)
    seen[message] = None
    while len(seen) > 10_000:
        seen.popitem(last=False)
