"""The page `/docs` of the standalone server: its operations, without scripts."""

from html import escape

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse

# FastAPI's own page runs scripts of another site on the origin of the operators' page.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; }}
td {{ border-top: 1px solid #8886; padding: .25rem 1rem .25rem 0; vertical-align: top; }}
:root {{ color-scheme: light dark; }}
</style>
<h1>{title}</h1>
<p>The <a href="openapi.json">OpenAPI document</a> has the parameters, bodies and problems of each operation;
open it with any client or viewer.</p>
<table>
{rows}
</table>
"""


def add_operations_page(app: FastAPI) -> None:
    """Add the page to an app without one."""

    async def show_operations(_: Request) -> Response:
        rows = [
            f"<tr><td><code>{method.upper()}</code><td><code>{escape(path)}</code>"
            f"<td>{escape(operation.get('summary', ''))}"
            for path, operations in app.openapi()["paths"].items()
            for method, operation in operations.items()
        ]
        page = _PAGE.format(title=escape(f"{app.title} {app.version}"), rows="\n".join(rows))
        return HTMLResponse(page, headers=_HEADERS)

    app.add_route("/docs", show_operations, methods=["GET"], include_in_schema=False)
