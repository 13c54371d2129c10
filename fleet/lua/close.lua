-- The cause of a pause is gone: close every circuit; or, where that is not certain, leave each half
-- open, so that one request tries before the rest follow.
-- ARGV: '1' to try first
-- → number of endpoints
local all = routes()
for _, e in ipairs(all) do
    e.backoff, e.strikes = 0, 0
    if ARGV[1] == '1' then
        open_circuit(e, 0, 0)
        e.cool_until = NOW
        write_state(e, {'cool_until'})
    else close_circuit(e) end
end
return #all
