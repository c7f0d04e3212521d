"""Build site/ with Zensical; fail on any warning and on any broken link."""

import subprocess
import sys
from pathlib import Path

from sitegen import ROOT, SITE
from sitegen.links import broken, external
from sitegen.stage import stage
from sitegen.versions import publish


def main() -> int:
    """Copy and generate the pages, build the site, check its links, and list those that leave it.

    `--publish VERSION FOLDER` then puts it into a folder with the sites of all versions.
    """
    stage()
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT, check=False
    )
    if built.returncode:
        return built.returncode
    problems = broken(SITE)
    for problem in problems:
        print(f"broken link: {problem}", file=sys.stderr)
    if "--external" in sys.argv:
        print("\n".join(external(SITE)))
    if "--publish" in sys.argv and not problems:
        version, folder = sys.argv[sys.argv.index("--publish") + 1 :][:2]
        publish(SITE, version, Path(folder))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
