"""What a server counts and times, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """The metrics of one server."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.num_in_flight = 0  # calls that have not been answered yet

        def make(kind, name, text, *labels, **options):
            name = f"keras_transformer_{name}"
            return kind(name, text, labels, registry=self.registry, **options)

        self.requests = make(Counter, "requests", "Requests answered.", "method", "code")
        self.seconds = make(
            Histogram, "request_seconds", "From request to answer.", "method", buckets=SECONDS
        )
        self.queue_seconds = make(
            Histogram, "queue_seconds", "That a row waited to run.", buckets=SECONDS
        )
        self.batch_size = make(
            Histogram, "batch_size", "Rows of an execution.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        )  # fmt: skip
        self.tokens = make(Counter, "tokens", "Tokens decoded.")
        self.waiting = make(Gauge, "waiting_rows", "Rows that wait to run.")
        self.streams = make(Gauge, "streams", "Translations that are being streamed.")

    def observe_batch(self, rows: int, waited: list[float]) -> None:
        self.batch_size.observe(rows)
        for seconds in waited:
            self.queue_seconds.observe(seconds)
