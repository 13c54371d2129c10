-- Move a claimed prompt, and the turns that would have followed it, to the dead letters.
-- ARGV: prompt_id, fence, dataset, nano-USD spent, nano-USD presumed spent, kind, reason,
--       failure JSON, event ('' for none), body, follow-up failure JSON, follow-up prompt_ids…
-- → 'failed' | 'repeated'
local id, fence, dataset = ARGV[1], ARGV[2], ARGV[3]
local mine = settle(id, fence, tonumber(ARGV[4]), tonumber(ARGV[5]), true)
if mine == nil then return 'repeated' end
redis.call('HINCRBY', ERRORS, ARGV[6], 1)
redis.call('HSET', ERRORS, 'last:' .. ARGV[6], ARGV[7])
if ARGV[9] ~= '' then
    redis.call('XADD', COMPLETIONS, '*', 'm', ARGV[9], 'r', ARGV[10])
    add_run('rejected', 1)
end
-- A late failure says nothing about the claim that followed it.
if not mine or redis.call('HEXISTS', DONE, id) == 1 then return 'failed' end
forget(id)
if redis.call('HSETNX', FAILURES, id, ARGV[8]) == 1 then add(dataset, 'failed', 1) end
for i = 12, #ARGV do
    if redis.call('HSETNX', FAILURES, ARGV[i], ARGV[11]) == 1 then add(dataset, 'failed', 1) end
end
return 'failed'
