# The server, the worker and the operator's commands in one image: docker build -t zndraw-joblib .
FROM python:3.13-slim AS build
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements/server.txt requirements/server.txt
RUN pip install -r requirements/server.txt
COPY pyproject.toml README.md LICENSE ./
COPY alembic alembic
COPY docs/reference/settings.md docs/reference/settings.md
COPY src src
RUN pip install --no-deps .

FROM python:3.13-slim
RUN useradd --uid 10001 --create-home joblib
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER joblib
WORKDIR /home/joblib
EXPOSE 8000
ENTRYPOINT ["zndraw-joblib"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
