-- Index for counting failed messages without reading the delivered ones.

CREATE INDEX webhook_deliveries_failed ON webhook_deliveries (created_at) WHERE state = 'failed';
