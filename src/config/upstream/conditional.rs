//! `conditional_disagg_config`: when a prompt needs no context leg.
//!
//! It decides by what a generation instance holds of the prompt, which only the router
//! `kv_cache_aware` knows: with another one upstream fails at the first request, and a file that asks
//! for it is refused here before that.

use crate::config::{
    ConditionalDisaggConfig, EdgeConfig, PairConfig, RouterConfig,
    raw::{self, Field, Section},
    report::Report,
};

/// Reads the section; `config` has the fleets that would serve such prompts.
pub(super) fn read(
    field: Option<Field>,
    config: &EdgeConfig,
    report: &mut Report,
) -> Option<ConditionalDisaggConfig> {
    let field = field.filter(|field| !field.is_null())?;
    let raw = raw::ConditionalDisagg::closed(field, report);
    let mut pairs = config.pools().filter_map(|(_, fleets)| fleets.pair());
    let by_cache =
        |pair: &PairConfig| matches!(pair.generation.router, RouterConfig::KvCacheAware(_));
    if !pairs.any(by_cache) {
        report.error(
            &raw.at,
            "needs generation_servers.router.type kv_cache_aware, the only router that knows how \
             much of a prompt an instance holds; set it, or remove conditional_disagg_config",
        );
    }
    let length = raw.max_local_prefill_length;
    let length = length.and_then(|field| field.integer(report, 0..=u32::MAX));
    Some(ConditionalDisaggConfig {
        max_local_prefill_length: length.unwrap_or(0),
    })
}
