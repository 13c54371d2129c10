-- Move a claimed prompt, and the turns that would have followed it, to the dead letters.
-- ARGV: prompt_id, fence, dataset, failure JSON, then of what failed: as in release.lua, then
--       follow-up failure JSON, follow-up prompt_ids…
-- → 'failed' | 'repeated'
local id, fence, dataset = ARGV[1], ARGV[2], ARGV[3]
local mine = settle(id, fence, tonumber(ARGV[5]), tonumber(ARGV[6]), true)
if mine == nil then return 'repeated' end
failed(mine, 5)
-- A late failure says nothing about the claim that followed it.
if not mine.fence or redis.call('HEXISTS', DONE, id) == 1 then return 'failed' end
forget(id)
if redis.call('HSETNX', FAILURES, id, ARGV[4]) == 1 then add(dataset, 'failed', 1) end
for i = 15, #ARGV do
    if redis.call('HSETNX', FAILURES, ARGV[i], ARGV[14]) == 1 then add(dataset, 'failed', 1) end
end
return 'failed'
