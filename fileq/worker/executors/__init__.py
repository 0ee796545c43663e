"""Those who run handlers: in child processes, or in threads. They know nothing of brokers."""
