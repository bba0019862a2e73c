//! Sizes of what a request holds while it waits, in bytes: a future that grows is copied and
//! allocated.
fn main() {
    println!("engine::Reader {}", size_of::<engine::Reader>());
    println!("replica::ReadCommand {}", size_of::<replica::ReadCommand>());
    println!("replica::Context {}", size_of::<replica::Context>());
    println!("replica::page::PageBuilder {}", size_of::<replica::page::PageBuilder<'static>>());
    println!("coordinator::Query {}", size_of::<coordinator::Query>());
    println!("Fragment {}", size_of::<model::fragment::Fragment>());
}
