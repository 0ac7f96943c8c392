//! Compiles and runs the Rust blocks of the guide as doc tests.

/// One item for each chapter, so that the names of the tests say the chapter.
macro_rules! chapters {
    ($($chapter:ident $file:literal)*) => {$(
        #[doc = include_str!(concat!("../docs/guide/src/", $file))]
        struct $chapter;
    )*};
}

chapters! {
    Introduction "README.md"
    WhatRdmaIs "01-what-rdma-is.md"
    FirstTransfer "02-first-transfer.md"
    MemoryAndOwnership "03-memory-and-ownership.md"
    CompletionsEventsAsync "04-completions-events-async.md"
    Connecting "05-connecting.md"
    ErrorsAndExplanations "06-errors-and-explanations.md"
    Performance "07-performance.md"
    Networks "08-networks.md"
    Security "09-security.md"
    FromC "10-from-c.md"
    FromOtherCrates "11-from-other-crates.md"
    CiAndContainers "12-ci-and-containers.md"
    ProductionWithAdapters "13-production-with-adapters.md"
    Questions "14-faq.md"
}
