//! Requests to a coordinator of the cluster.

use super::{Cluster, table_id};
use coordinator::{Consistency, CoordinatorError, PageRequest, Query, QueryPage, WriteKind};
use model::mutation::Mutation;
use replica::{Excess, RateLimited};
use smallvec::smallvec;

/// An error without the numbers of a refusal, which depend on time and token.
pub fn without_excess(error: CoordinatorError) -> CoordinatorError {
    match error {
        CoordinatorError::RateLimited { refused, by_coordinator } => {
            let refused = RateLimited { partition: 0, excess: Excess::default(), ..refused };
            CoordinatorError::RateLimited { refused, by_coordinator }
        }
        other => other,
    }
}

impl Cluster {
    pub async fn write_as(
        &self,
        node: usize,
        mutation: Mutation,
        kind: WriteKind,
        consistency: Consistency,
    ) -> Result<(), CoordinatorError> {
        let key = mutation.decorated_key();
        let (mutations, options) = (smallvec![(mutation, key)], self.options(consistency));
        self.nodes[node].coordinator.write(mutations, kind, &options).await.map_err(without_excess)
    }

    pub async fn page(
        &self,
        node: usize,
        query: &Query,
        page: &PageRequest,
        consistency: Consistency,
    ) -> Result<QueryPage, CoordinatorError> {
        // Each node has its own snapshot of the metadata.
        let metadata = self.nodes[node].coordinator.metadata();
        let query = Query { table: metadata.table_by_id(table_id()).expect("it is there").clone(), ..query.clone() };
        self.nodes[node].coordinator.read(&query, page, &self.options(consistency)).await.map_err(without_excess)
    }

    pub async fn reduce(
        &self,
        node: usize,
        query: &Query,
        consistency: Consistency,
    ) -> Result<QueryPage, CoordinatorError> {
        self.nodes[node].coordinator.reduce(query, &self.options(consistency)).await.map_err(without_excess)
    }
}
