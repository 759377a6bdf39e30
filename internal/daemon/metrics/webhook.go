package metrics

import "github.com/prometheus/client_golang/prometheus"

// webhookMetrics count requests of webhooks, and losses of events.
type webhookMetrics struct {
	sent *prometheus.CounterVec
	lost *prometheus.CounterVec
}

func newWebhookMetrics() webhookMetrics {
	return webhookMetrics{
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_webhook_requests_total", Help: "Requests to webhooks by result: delivered or failed."},
			[]string{"result"}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkd_webhook_losses_total",
			Help: "How often a webhook lost events, by reason: overflow or given_up."},
			[]string{"reason"}),
	}
}

func (m *webhookMetrics) all() []prometheus.Collector { return []prometheus.Collector{m.sent, m.lost} }

// WebhookSent counts a request to the server of a webhook, by whether the server accepted it.
func (m *Metrics) WebhookSent(accepted bool) {
	result := "failed"
	if accepted {
		result = "delivered"
	}
	m.webhook.sent.WithLabelValues(result).Inc()
}

// WebhookLost counts that a webhook has lost events.
func (m *Metrics) WebhookLost(reason string) { m.webhook.lost.WithLabelValues(reason).Inc() }
