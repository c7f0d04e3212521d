"""Write all generated files, and print the names of those that have changed."""

from generate import ROOT
from generate.files import FILES

for path, generate in FILES.items():
    text = generate()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
