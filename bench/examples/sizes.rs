//! The sizes of the futures of a request in bytes: a larger future costs more to copy and to
//! allocate.
fn main() {
    println!("engine::Reader {}", size_of::<engine::Reader>());
    println!("replica::ReadCommand {}", size_of::<replica::ReadCommand>());
    println!("replica::Context {}", size_of::<replica::Context>());
    println!("replica::page::PageBuilder {}", size_of::<replica::page::PageBuilder<'static>>());
    println!("coordinator::Query {}", size_of::<coordinator::Query>());
    println!("Fragment {}", size_of::<model::fragment::Fragment>());
}
