//! Requests of administrators that other nodes answer with JSON.

use bytes::Bytes;
use cluster::ClusterShards;
use internode::{Peer, Verb};
use model::HostId;
use rt::sync::Deadline;
use rt::time::Duration;
use serde::de::DeserializeOwned;

/// How long another node may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The response of a node to a request of a verb, without content. The error is for the
/// administrator.
pub async fn json_of<T: DeserializeOwned>(shards: ClusterShards, host: HostId, verb: Verb) -> Result<T, String> {
    let internode = shards.internode.try_get().ok_or("this node has no transport to other nodes")?;
    if internode.liveness().is_down(host) {
        return Err("the node is down".to_owned());
    }
    let peer = Peer { host, shard: 0 };
    let answer = internode.call(peer, verb, Bytes::new(), Deadline::after(TIMEOUT)).await;
    let answer = answer.map_err(|error| error.to_string())?;
    serde_json::from_slice(&answer).map_err(|error| format!("the response is not JSON: {error}"))
}
