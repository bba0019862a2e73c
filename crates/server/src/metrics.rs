//! Metrics for Prometheus, per shard, with ScyllaDB's names.
//!
//! [`sample`] collects the values of one shard. [`families`] is the table of names. [`text`] writes
//! the text format. A new metric is a field in the metrics of some layer, and a line in
//! [`families`].

pub mod families;
pub mod sample;
pub mod text;

use crate::remote::RemoteShards;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sample::{MetricsShards, Sample};

/// The content type of Prometheus's text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The route `/metrics` of a node with `memory` bytes for each shard.
pub fn router(remote: RemoteShards<MetricsShards>, memory: u64) -> Router {
    Router::new().route("/metrics", get(scrape)).with_state((remote, memory))
}

async fn scrape(State((remote, memory)): State<(RemoteShards<MetricsShards>, u64)>) -> Response {
    match remote.call_all(move |shards| async move { Sample::take(shards, memory) }).await {
        Ok(samples) => {
            let body = text::write(families::FAMILIES, &samples);
            ([(header::CONTENT_TYPE, CONTENT_TYPE)], body).into_response()
        }
        Err(gone) => (StatusCode::SERVICE_UNAVAILABLE, gone.to_string()).into_response(),
    }
}
