//! The settings of the slow query log, under ScyllaDB's path. A change applies to every shard, and
//! is lost at a restart.

use super::RemoteServices;
use super::extract::Query;
use super::refusal::Refusal;
use super::rest::AdminState;
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use cql::SlowLogSettings;
use model::time::MAX_TTL;
use rt::ShardId;
use serde::{Deserialize, Serialize};

/// The paths of this file.
pub fn routes() -> Router<AdminState> {
    Router::new().route("/storage_service/slow_query", get(shown).post(set))
}

/// The settings by ScyllaDB's names.
#[derive(Serialize)]
struct Shown {
    enable: bool,
    fast: bool,
    /// Seconds.
    ttl: i32,
    /// Microseconds.
    threshold: u32,
}

/// The settings to change. Absent settings keep their value. A misspelt one is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    enable: Option<String>,
    fast: Option<String>,
    ttl: Option<String>,
    threshold: Option<String>,
}

impl Wanted {
    /// The settings with these changes.
    fn applied_to(&self, mut settings: SlowLogSettings) -> Result<SlowLogSettings, Refusal> {
        let switch = |name: &str, text: &str| match text.to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Refusal::Bad(format!("{name} must be true or false, not {text}"))),
        };
        let number = |name: &str, text: &str, most: u32| {
            let number = text.parse::<u32>().ok().filter(|number| *number <= most);
            number.ok_or_else(|| Refusal::Bad(format!("{name} must be a number from 0 to {most}, not {text}")))
        };
        if let Some(text) = &self.enable {
            settings.enabled = switch("enable", text)?;
        }
        if let Some(text) = &self.fast {
            settings.fast = switch("fast", text)?;
        }
        if let Some(text) = &self.ttl {
            settings.ttl_seconds = number("ttl", text, MAX_TTL.unsigned_abs())?.cast_signed();
        }
        if let Some(text) = &self.threshold {
            settings.threshold_micros = number("threshold", text, u32::MAX)?;
        }
        Ok(settings)
    }
}

/// The settings of shard 0. All shards have the same settings.
async fn settings(remote: &RemoteServices) -> Result<SlowLogSettings, Refusal> {
    let settings = remote.call(ShardId(0), |services| async move {
        // A node that does not serve logs nothing.
        services.processor.try_get().map(|processor| processor.slow_log()).unwrap_or_default()
    });
    settings.await.map_err(Refusal::failed)
}

async fn shown(State(state): State<AdminState>) -> Result<Json<Shown>, Refusal> {
    let SlowLogSettings { enabled, threshold_micros, ttl_seconds, fast } = settings(&state.remote).await?;
    Ok(Json(Shown { enable: enabled, fast, ttl: ttl_seconds, threshold: threshold_micros }))
}

async fn set(State(state): State<AdminState>, Query(wanted): Query<Wanted>) -> Result<Json<()>, Refusal> {
    let settings = wanted.applied_to(settings(&state.remote).await?)?;
    let set = state.remote.call_all(move |services| async move {
        if let Some(processor) = services.processor.try_get() {
            processor.set_slow_log(settings);
        }
    });
    set.await.map(|_| Json(())).map_err(Refusal::failed)
}
