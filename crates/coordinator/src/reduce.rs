//! Aggregates of all rows of a query: each owner reduces the rows that it has, all owners at the same time.
//!
//! Tablets are read next to each other, each page by page; a page has the rows' number and what they were reduced to
//! ([`replica::reduce`]), and takes the way of any other page: consistency levels, digests and reconciliation know nothing of it.
//! A page is also as long as metadata are held on to: the next one is routed by the newest, so that a long aggregate keeps nobody waiting
//! who waits for old metadata to go out of use.

use super::read::{self, PageRequest, Partitions, Query, QueryPage};
use super::targets::Targets;
use super::window::WIDEST;
use super::{Coordinator, CoordinatorError, RequestOptions};
use futures_util::{StreamExt, stream};

/// Rows that an owner reduces in one go, so that no page is long.
const ROWS_PER_PAGE: u64 = 100_000;

impl Coordinator {
    /// Reads all of a query whose output has no columns or is reduced: the number of rows, and the rows that they were reduced to, in any
    /// number, one behind the other. The query has no limits.
    pub async fn reduce(&self, query: &Query, options: &RequestOptions) -> Result<QueryPage, CoordinatorError> {
        let mut parts = Vec::new();
        match &query.partitions {
            Partitions::Keys(_) => parts.push(query.clone()),
            Partitions::Range(_) => {
                let mut targets = Targets::new(query, None).ok_or(CoordinatorError::PagingState)?;
                while let Some((_, range)) = targets.next() {
                    parts.push(Query { partitions: Partitions::Range(range), ..query.clone() });
                }
            }
        }
        let reading = parts.into_iter().map(|part| Box::pin(self.reduce_part(part, options)));
        let mut reading = stream::iter(reading).buffered(WIDEST);
        let mut whole = QueryPage::default();
        while let Some(part) = reading.next().await {
            append(&mut whole, part?);
        }
        Ok(whole)
    }

    async fn reduce_part(&self, mut query: Query, options: &RequestOptions) -> Result<QueryPage, CoordinatorError> {
        let mut whole = QueryPage::default();
        let mut state = None;
        loop {
            let wanted = PageRequest { size: Some(ROWS_PER_PAGE), state, budget: None };
            let mut page = self.read_anew(&mut query, &wanted, options).await?;
            state = page.next.take();
            append(&mut whole, page);
            if state.is_none() {
                return Ok(whole);
            }
            rt::task::yield_now().await;
        }
    }

    /// Reads a page of a query that may be older than the newest metadata; it is routed by these, and holds them no longer than it takes.
    pub async fn read_anew(
        &self,
        query: &mut Query,
        page: &PageRequest,
        options: &RequestOptions,
    ) -> Result<QueryPage, CoordinatorError> {
        let metadata = self.metadata();
        let newest = metadata.table_by_id(query.table.schema.id).ok_or(CoordinatorError::NoSuchTable)?;
        if newest.tablets.count() == query.table.tablets.count() {
            query.table = newest.clone();
        }
        let options = options.routed_by(metadata.number);
        // Each request to a replica holds on to the metadata itself, and lets go of them when they turn out to be outdated.
        drop(metadata);
        self.read(query, page, &options).await
    }
}

fn append(whole: &mut QueryPage, page: QueryPage) {
    whole.rows += page.rows;
    read::append(&mut whole.body, page.body);
    whole.info = whole.info.then(page.info);
}
