-- Give a claimed prompt back, to be sent again later.
-- ARGV: prompt_id, fence, delay ms, attempts to count, nano-USD spent, nano-USD presumed spent,
--       kind ('' when nothing failed), message, event ('' for none), body
-- → 'released' | 'repeated'
local id, fence = ARGV[1], ARGV[2]
local mine = settle(id, fence, tonumber(ARGV[5]), tonumber(ARGV[6]), true)
if mine == nil then return 'repeated' end
if ARGV[7] ~= '' then
    redis.call('HINCRBY', ERRORS, ARGV[7], 1)
    redis.call('HSET', ERRORS, 'last:' .. ARGV[7], ARGV[8])
end
if ARGV[9] ~= '' then
    redis.call('XADD', COMPLETIONS, '*', 'm', ARGV[9], 'r', ARGV[10])
    add_run('rejected', 1)
end
if mine and redis.call('HEXISTS', PROMPTS, id) == 1 then
    if tonumber(ARGV[4]) > 0 then redis.call('HINCRBY', ATTEMPTS, id, ARGV[4]) end
    wait_until(id, NOW + tonumber(ARGV[3]))
end
return 'released'
