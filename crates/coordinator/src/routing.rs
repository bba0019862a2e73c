//! The value of the custom payload `tablets-routing-v1`, which gives drivers the replicas of a
//! tablet.
//!
//! A request that arrives at the wrong shard is answered with all replicas. Drivers request the
//! next page from any of these replicas, and a replica without the querier must fetch the page from
//! a replica that has it. So while a client pages, the payload names only the replicas that keep
//! its querier. After the last page it names all replicas again, unless other queries page through
//! the table here. If a client abandons a query, it keeps the shorter list until it pages through
//! that tablet again, or until a request arrives at the wrong shard.

use super::Coordinator;
use super::paging::PagingState;
use bytes::Bytes;
use cluster::metadata::Table;
use cluster::tablets::TabletReplica;
use model::token::Token;
use smallvec::SmallVec;

impl Coordinator {
    /// The tablet that owns the token, with its replicas. None if this shard owns it.
    pub fn tablet_hint(&self, table: &Table, token: Token) -> Option<Bytes> {
        let tablet = table.tablets.tablet_of(token);
        let replicas = table.tablets.read_set(tablet);
        let here = TabletReplica { host: self.host, shard: rt::shard::this().0 };
        if replicas.is_empty() || replicas.contains(&here) {
            return None;
        }
        Some(encode(table, tablet, replicas))
    }

    /// The routing payload of a page that is not the first one of a query of this partition. If
    /// other replicas keep the querier, it is the tablet with only those replicas. After the last
    /// page (`next` is none) it is the tablet with all replicas, unless another query pages through
    /// the table here.
    pub fn hint_of_page(&self, table: &Table, token: Token, next: Option<&PagingState>) -> Option<Bytes> {
        let tablet = table.tablets.tablet_of(token);
        let replicas = table.tablets.read_set(tablet);
        let Some(next) = next else {
            let tell = replicas.len() > 1 && !self.replica.keeps_queriers_of(table.schema.id);
            return tell.then(|| encode(table, tablet, replicas));
        };
        let kept = &next.replicas.as_ref()?.hosts;
        if kept.contains(&self.host) {
            return None;
        }
        let keepers: SmallVec<[TabletReplica; 3]> =
            replicas.iter().filter(|replica| kept.contains(&replica.host)).copied().collect();
        (!keepers.is_empty()).then(|| encode(table, tablet, &keepers))
    }
}

/// `tuple<bigint, bigint, list<tuple<uuid, int>>>`: the token before the tablet's first one, its
/// last token, and the replicas.
fn encode(table: &Table, tablet: u32, replicas: &[TabletReplica]) -> Bytes {
    let mut list = (replicas.len() as i32).to_be_bytes().to_vec();
    for replica in replicas {
        let mut pair = Vec::with_capacity(28);
        push_value(&mut pair, replica.host.as_bytes());
        push_value(&mut pair, &(replica.shard as i32).to_be_bytes());
        push_value(&mut list, &pair);
    }
    let mut out = Vec::with_capacity(64);
    push_value(&mut out, &table.tablets.first_token(tablet).0.to_be_bytes());
    push_value(&mut out, &table.tablets.last_token(tablet).0.to_be_bytes());
    push_value(&mut out, &list);
    out.into()
}

fn push_value(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    out.extend_from_slice(bytes);
}
